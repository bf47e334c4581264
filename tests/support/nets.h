// Networks by their text, for tests and benchmarks that hold on to the spec.
#ifndef TESTS_SUPPORT_NETS_H
#define TESTS_SUPPORT_NETS_H

#include <string.h>

#include "must.h"
#include "nn/net.h"

// The network that farm_net_find reads; it stays.
static inline const struct farm_net_spec *net_spec(const char *text) {
    enum { KEPT = 64 };
    static struct farm_net_spec kept[KEPT];
    static int count;
    struct farm_error err;
    for (int i = 0; i < count; i++)
        if (strcmp(kept[i].text, text) == 0) return &kept[i];
    must_hold(count < KEPT, "more networks");
    must(farm_net_find(text, &kept[count], &err), &err);
    return &kept[count++];
}

#endif
