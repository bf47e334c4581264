// The identity of a node. tests/tools/test_bridge_node.py tests a node's runs from outside.
#include "run/node.h"

#include <criterion/criterion.h>

Test(node, has_an_identity_that_no_living_node_has) {
    const struct farm_recipe recipe = {0};
    const struct farm_run_node_request request = {.node.address = "127.0.0.1:1", .recipe = &recipe};
    struct farm_run_node *nodes[3];
    struct farm_error err;
    for (int i = 0; i < 3; i++) cr_assert_eq(farm_run_node_make(&request, &nodes[i], &err), FARM_OK);
    const uint64_t first = nodes[0]->request.node.machine, second = nodes[1]->request.node.machine;
    cr_expect(first && second && first != second && nodes[2]->request.node.machine != second);
    farm_run_node_free(nodes[1]);
    cr_assert_eq(farm_run_node_make(&request, &nodes[1], &err), FARM_OK);
    cr_expect_eq(nodes[1]->request.node.machine, second, "the next node takes the identity of the one that ended");
    for (int i = 0; i < 3; i++) farm_run_node_free(nodes[i]);
}
