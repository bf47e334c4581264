// The bridge's stream as SEED sends it: a bidirectional gRPC stream by TLS over TCP, a protobuf message for each step
// of a lane there, one for its answer back; the asynchronous interface, one completion queue and one thread of its own
// a side. usage: grpc_stream server FOLDER ADDR:PORT | client FOLDER ADDR:PORT BYTES IN_FLIGHT WARM_S SECONDS FOLDER
// holds key.pem and certificate.pem. The client prints bytes/s of answered messages. Both sides hold as many steps as
// the bridge's rings in build/bench/bridge (4 lanes: 4 steps at the node, 16 at the learner), in messages that are used
// alternately: nothing is copied for it, but each step lies in memory of its own, as it has to.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "step.grpc.pb.h"

namespace {

enum { SENT_STEPS = 4 * 4, KEPT_STEPS = 4 * 16 };
enum Tag : intptr_t { STARTED = 1, WRITTEN, ARRIVED };

void *tag_of(Tag tag) {
    return reinterpret_cast<void *>(tag);
}

void need(bool good, const char *what) {
    if (good) return;
    std::fprintf(stderr, "grpc_stream: %s\n", what);
    std::_Exit(1);
}

std::string file(const std::string &path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    need(!text.str().empty(), path.c_str());
    return text.str();
}

// The next event; false: the stream has ended.
bool next(grpc::CompletionQueue &events, Tag *tag) {
    void *got = nullptr;
    bool ok = false;
    need(events.Next(&got, &ok), "the completion queue");
    *tag = static_cast<Tag>(reinterpret_cast<intptr_t>(got));
    return ok;
}

int serve(const std::string &folder, const std::string &address) {
    step::Policy::AsyncService service;
    grpc::ServerBuilder builder;
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({file(folder + "/key.pem"), file(folder + "/certificate.pem")});
    builder.AddListeningPort(address, grpc::SslServerCredentials(options));
    builder.RegisterService(&service);
    auto events = builder.AddCompletionQueue();
    auto server = builder.BuildAndStart();
    need(server != nullptr, "the server");
    for (;;) { // one client after another
        grpc::ServerContext context;
        grpc::ServerAsyncReaderWriter<step::Action, step::Observation> stream(&context);
        static step::Observation in[KEPT_STEPS];
        step::Action out;
        int32_t answers = 0, owed = 0, arrived = 0;
        bool writing = false;
        Tag tag;
        service.RequestAct(&context, &stream, events.get(), events.get(), tag_of(STARTED));
        need(next(*events, &tag), "a stream");
        stream.Read(&in[0], tag_of(ARRIVED));
        for (bool reading = true; reading || writing;) {
            const bool ok = next(*events, &tag);
            if (tag == WRITTEN) writing = false;
            if (tag == ARRIVED) reading = ok;
            if (tag == ARRIVED && ok) {
                owed++;
                stream.Read(&in[++arrived % KEPT_STEPS], tag_of(ARRIVED));
            }
            if (owed && !writing) {
                out.set_action(answers++);
                owed--;
                writing = true;
                stream.Write(out, tag_of(WRITTEN));
            }
        }
        stream.Finish(grpc::Status::CANCELLED, tag_of(STARTED));
        next(*events, &tag);
    }
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int stream_to(const std::string &folder, const std::string &address, size_t bytes, int in_flight, double warm_s,
              double seconds) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = file(folder + "/certificate.pem");
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("learner");
    auto channel = grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
    need(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)), "connecting");
    auto stub = step::Policy::NewStub(channel);
    grpc::CompletionQueue events;
    grpc::ClientContext context;
    Tag tag;
    auto stream = stub->AsyncAct(&context, &events, tag_of(STARTED));
    need(next(events, &tag), "the stream");
    static step::Observation out[SENT_STEPS];
    step::Action in;
    for (auto &message : out) message.mutable_pixels()->resize(bytes);
    int32_t sent = 0, answered = 0, from = 0;
    bool writing = false;
    double start = now() + warm_s, begun = 0;
    stream->Read(&in, tag_of(ARRIVED));
    for (;;) {
        if (!writing && sent - answered < in_flight) {
            step::Observation &message = out[sent % SENT_STEPS];
            (*message.mutable_pixels())[0] = static_cast<char>(sent++);
            writing = true;
            stream->Write(message, tag_of(WRITTEN)); // serialises before it returns
        }
        need(next(events, &tag), "the stream");
        if (tag == WRITTEN) writing = false;
        if (tag != ARRIVED) continue;
        need(in.action() == answered++, "an answer");
        stream->Read(&in, tag_of(ARRIVED));
        const double time = now();
        if (begun == 0 && time >= start) {
            begun = time;
            from = answered;
        }
        if (begun != 0 && time - begun >= seconds) {
            std::printf("%.0f\n", static_cast<double>(bytes) * (answered - from) / (time - begun));
            std::fflush(stdout);
            std::_Exit(0);
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 4 && std::string(argv[1]) == "server") return serve(argv[2], argv[3]);
    need(argc == 8, "wrong arguments");
    return stream_to(argv[2], argv[3], std::strtoul(argv[4], nullptr, 10), std::atoi(argv[5]), std::atof(argv[6]),
                     std::atof(argv[7]));
}
