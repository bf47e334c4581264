// Replays inputs where there is no libFuzzer: every file named on the command line goes through the target once.
#include <stdio.h>

#include "fuzz.h"

int main(int argc, char **argv) {
    int inputs = 0;
    for (int i = 1; i < argc; i++) {
        static uint8_t buffer[1 << 20];
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            perror(argv[i]);
            return 1;
        }
        size_t bytes = fread(buffer, 1, sizeof buffer, file);
        fclose(file);
        uint8_t *exact = malloc(bytes ? bytes : 1); // ASan watches its end
        if (!exact) return 1;
        memcpy(exact, buffer, bytes);
        fprintf(stderr, "%s\n", argv[i]);
        LLVMFuzzerTestOneInput(exact, bytes);
        free(exact);
        inputs++;
    }
    printf("stat::number_of_executed_units: %d\n", inputs);
    return 0;
}
