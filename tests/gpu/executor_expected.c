// Writes what the CPU's executor gives in f32 for the problems of executor_problem.h: executor_expected FILE. Per
// problem logits [rows][actions], values [rows], gradients [parameters], f32. For machines with a GPU, which lack
// oneDNN.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/random.h"
#include "nn/executor.h"

#include "executor_problem.h"

static void stop(const char *what) {
    fprintf(stderr, "executor_expected: %s\n", what);
    exit(1);
}

static void *array(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (memory == NULL) stop("no memory");
    return memory;
}

static void write_answers(const struct executor_problem *problem, FILE *file) {
    const struct farm_net_io *io = &problem->io;
    const size_t rows = (size_t)problem->rows, frames = rows * (size_t)io->stack, logits = rows * (size_t)io->actions;
    struct farm_net net;
    struct farm_error err;
    struct farm_executor *executor;
    if (farm_net_make(farm_net_find(problem->net, &err), io, &net, &err) != FARM_OK) stop(err.message);
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_executor_config config = {
        .net = &net, .batch_max = problem->rows, .training = true, .arithmetic = &f32};
    if (farm_executor_create(&config, &executor, &err) != FARM_OK) stop(err.message);
    float *params = array(net.parameter_count, sizeof *params);
    float *dlogits = array(logits, sizeof *dlogits), *dvalue = array(rows, sizeof *dvalue);
    float *answers = array(logits + rows + net.parameter_count, sizeof *answers);
    char *input = array(executor_input_bytes(io, problem->rows), 1);
    const void **pointers = array(frames, sizeof *pointers);
    executor_fill_params(&net, params);
    executor_fill_gradients(io, problem->rows, dlogits, dvalue);
    executor_fill_input(io, problem->rows, input);
    const size_t each = io->flat > 0 ? (size_t)io->flat * sizeof(float) : executor_frame_bytes(io);
    for (size_t f = 0; f < frames; f++) pointers[f] = executor_frame_is_null(io, f) ? NULL : input + f * each;
    farm_executor_load(executor, params);
    farm_executor_forward(executor, pointers, farm_sequence_rows(problem->rows), answers, answers + logits);
    farm_executor_backward(executor, pointers, farm_sequence_rows(problem->rows), dlogits, dvalue,
                           answers + logits + rows);
    if (fwrite(answers, sizeof *answers, logits + rows + net.parameter_count, file) !=
        logits + rows + net.parameter_count)
        stop("the file cannot be written");
    farm_executor_destroy(executor);
    free(params);
    free(dlogits);
    free(dvalue);
    free(answers);
    free(input);
    free(pointers);
}

int main(int argc, char **argv) {
    if (argc != 2) stop("usage: executor_expected FILE");
    FILE *file = fopen(argv[1], "wb");
    if (file == NULL) stop("the file cannot be opened");
    for (int i = 0; i < EXECUTOR_PROBLEMS; i++) write_answers(&executor_problems[i], file);
    if (fclose(file) != 0) stop("the file cannot be written");
    return 0;
}
