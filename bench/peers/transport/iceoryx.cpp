// iceoryx: shared memory handed over through its broker's (iox-roudi's) pools, observation and action each a topic. The
// observation is written in the chunk that is published and read in place. A sleeping side waits in a WaitSet.
#include <iceoryx_posh/popo/untyped_publisher.hpp>
#include <iceoryx_posh/popo/untyped_subscriber.hpp>
#include <iceoryx_posh/popo/wait_set.hpp>
#include <iceoryx_posh/runtime/posh_runtime.hpp>

#include <string>

#include "work.h"

namespace {

std::string instance; // of this pair of processes

struct Side {
    Side(bool spins, bool actor)
        : spin(spins), out(topic(actor ? "observation" : "action")), in(topic(actor ? "action" : "observation")) {
        if (!spin)
            waiting.attachState(in, iox::popo::SubscriberState::HAS_DATA).or_else([](auto) {
                work_need(false, "attachState");
            });
        while (!out.hasSubscribers() || in.getSubscriptionState() != iox::SubscribeState::SUBSCRIBED) usleep(1000);
    }
    static iox::capro::ServiceDescription topic(const char *event) {
        return {"actorfarm", iox::capro::IdString_t(iox::cxx::TruncateToCapacity, instance.c_str()),
                iox::capro::IdString_t(iox::cxx::TruncateToCapacity, event)};
    }

    void *loan(uint32_t bytes) {
        void *chunk = nullptr;
        out.loan(bytes, 8).and_then([&](void *&loaned) { chunk = loaned; });
        work_need(chunk != nullptr, "a chunk");
        return chunk;
    }
    // NULL while nothing has arrived (spinning side only).
    const void *take() {
        const void *chunk = nullptr;
        for (;;) {
            in.take().and_then([&](const void *&taken) { chunk = taken; });
            if (chunk || spin) return chunk;
            waiting.wait();
        }
    }

    const bool spin;
    iox::popo::UntypedPublisher out;
    iox::popo::UntypedSubscriber in;
    iox::popo::WaitSet<> waiting;
};

void prepare(const work *) {
    instance = std::to_string(getpid());
}

void *open_side(const work *work, bool actor) {
    const std::string name = (actor ? "actor-" : "learner-") + instance;
    iox::runtime::PoshRuntime::initRuntime(iox::RuntimeName_t(iox::cxx::TruncateToCapacity, name.c_str()));
    return new Side(work->spin, actor);
}

void *loan(void *self) {
    return static_cast<Side *>(self)->loan(WORK_OBS_BYTES);
}
void send(void *self, void *obs) {
    static_cast<Side *>(self)->out.publish(obs);
}
bool answered(void *self, int32_t *action) {
    Side *side = static_cast<Side *>(self);
    const void *chunk = side->take();
    if (!chunk) return false;
    *action = *static_cast<const int32_t *>(chunk);
    side->in.release(chunk);
    return true;
}

const void *arrived(void *self) {
    return static_cast<Side *>(self)->take();
}
void answer(void *self, const void *obs, int32_t action) {
    Side *side = static_cast<Side *>(self);
    side->in.release(obs);
    void *chunk = side->loan(sizeof action);
    *static_cast<int32_t *>(chunk) = action;
    side->out.publish(chunk);
}

} // namespace

int main(int argc, char **argv) {
    const struct transport iceoryx = {"iceoryx", prepare, open_side, loan, send, answered, arrived, answer};
    return work_main(&iceoryx, argc, argv);
}
