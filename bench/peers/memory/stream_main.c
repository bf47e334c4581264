// STREAM as a program: stream_main BYTES prints the best of ten rates of copy, scale, add and triad, each on arrays of
// that many bytes, in GB/s as STREAM counts. Linked with STREAM/stream.c of the source package hpcc. OpenMP's
// environment sets the threads.
#include "hpcc.h"

static long array_bytes;

int HPCC_LocalVectorSize(HPCC_Params *params, int arrays, size_t size, int power_of_two) {
    return (int)(array_bytes / (long)size);
}

int main(int argc, char **argv) {
    HPCC_Params params = {.outFname = "/dev/null"};
    double copy, scale, add, triad;
    int failure = 0;
    array_bytes = argc > 1 ? atol(argv[1]) : 0;
    if (array_bytes < 64 || HPCC_Stream(&params, 0, 0, 0, &copy, &scale, &add, &triad, &failure) || failure) {
        fprintf(stderr, "stream: no memory, or wrong data\n");
        return 1;
    }
    printf("{\"copy\": %.6f, \"scale\": %.6f, \"add\": %.6f, \"triad\": %.6f}\n", copy, scale, add, triad);
    return 0;
}
