// gRPC over a Unix socket: a bidirectional stream of protobuf messages, both sides with the asynchronous interface, one
// completion queue and one thread each. A spinning side asks its queue without waiting.
#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <string>

#include "step.grpc.pb.h"
#include "work.h"

namespace {

enum Tag : intptr_t { STARTED = 1, WRITTEN, ARRIVED };

void *tag_of(Tag tag) {
    return reinterpret_cast<void *>(tag);
}

std::string address;

// What both sides have: events of one stream, of which at most one write and one read are under way.
struct Side {
    explicit Side(bool spins) : spin(spins) {}
    virtual ~Side() = default;

    // Handles one event; a spinning side returns if there is none. Ends the program if the stream has ended.
    bool pump() {
        void *tag = nullptr;
        bool ok = false;
        if (!spin) {
            work_need(queue().Next(&tag, &ok), "the completion queue");
        } else {
            const auto status = queue().AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_REALTIME));
            if (status == grpc::CompletionQueue::TIMEOUT) return false;
        }
        errno = 0;
        work_need(ok, "the stream");
        if (tag == tag_of(WRITTEN)) writing = false;
        if (tag == tag_of(ARRIVED)) arrived();
        return true;
    }
    virtual grpc::CompletionQueue &queue() = 0;
    virtual void arrived() = 0;

    const bool spin;
    bool writing = false;
};

struct Actor : Side {
    explicit Actor(bool spins) : Side(spins) {
        channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
        work_need(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)), "connecting");
        stub = step::Policy::NewStub(channel);
        stream = stub->AsyncAct(&context, &events, tag_of(STARTED));
        while (!pump()) continue;
        stream->Read(&in, tag_of(ARRIVED));
        out.mutable_pixels()->resize(WORK_OBS_BYTES);
    }
    grpc::CompletionQueue &queue() override {
        return events;
    }
    void arrived() override {
        actions.push_back(in.action());
        stream->Read(&in, tag_of(ARRIVED));
    }

    grpc::CompletionQueue events;
    grpc::ClientContext context;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<step::Policy::Stub> stub;
    std::unique_ptr<grpc::ClientAsyncReaderWriter<step::Observation, step::Action>> stream;
    step::Observation out;
    step::Action in;
    std::deque<int32_t> actions;
};

struct Learner : Side {
    explicit Learner(bool spins) : Side(spins), stream(&context) {
        grpc::ServerBuilder builder;
        builder.AddListeningPort(address, grpc::InsecureServerCredentials());
        builder.RegisterService(&service);
        events = builder.AddCompletionQueue();
        server = builder.BuildAndStart();
        work_need(server != nullptr, "the server");
        service.RequestAct(&context, &stream, events.get(), events.get(), tag_of(STARTED));
        while (!pump()) continue;
        stream.Read(&in, tag_of(ARRIVED));
    }
    grpc::CompletionQueue &queue() override {
        return *events;
    }
    void arrived() override {
        errno = 0;
        work_need(in.pixels().size() == WORK_OBS_BYTES, "an observation's size");
        have = true;
    }

    step::Policy::AsyncService service;
    std::unique_ptr<grpc::ServerCompletionQueue> events;
    std::unique_ptr<grpc::Server> server;
    grpc::ServerContext context;
    grpc::ServerAsyncReaderWriter<step::Action, step::Observation> stream;
    step::Observation in;
    step::Action out;
    bool have = false;
};

void prepare(const work *) {
    address = "unix-abstract:actorfarm-transport-" + std::to_string(getpid()); // abstract: leaves no file
}

void *open_side(const work *work, bool actor) {
    if (actor) return new Actor(work->spin);
    return new Learner(work->spin);
}

void *loan(void *self) {
    Actor *actor = static_cast<Actor *>(self);
    while (actor->writing) actor->pump();
    return &(*actor->out.mutable_pixels())[0];
}
void send(void *self, void *) {
    Actor *actor = static_cast<Actor *>(self);
    actor->writing = true;
    actor->stream->Write(actor->out, tag_of(WRITTEN)); // serialises before it returns
}
bool answered(void *self, int32_t *action) {
    Actor *actor = static_cast<Actor *>(self);
    if (actor->actions.empty()) actor->pump();
    if (actor->actions.empty()) return false;
    *action = actor->actions.front();
    actor->actions.pop_front();
    return true;
}

const void *arrived(void *self) {
    Learner *learner = static_cast<Learner *>(self);
    if (!learner->have) learner->pump();
    return learner->have ? learner->in.pixels().data() : nullptr;
}
void answer(void *self, const void *, int32_t action) {
    Learner *learner = static_cast<Learner *>(self);
    learner->have = false;
    learner->stream.Read(&learner->in, tag_of(ARRIVED)); // the next one may come while this is answered
    while (learner->writing) learner->pump();
    learner->out.set_action(action);
    learner->writing = true;
    learner->stream.Write(learner->out, tag_of(WRITTEN));
}

} // namespace

int main(int argc, char **argv) {
    const struct transport grpc = {"grpc", prepare, open_side, loan, send, answered, arrived, answer};
    return work_main(&grpc, argc, argv);
}
