// What `farm bridge` is put together from, a file each; argv[0] is the part's own word. Exit status as tools.h says.
#ifndef FARM_TOOLS_BRIDGE_H
#define FARM_TOOLS_BRIDGE_H

int farm_bridge_connect(int argc, char **argv);
int farm_bridge_status(int argc, char **argv);

#endif
