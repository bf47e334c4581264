// The part of Criterion's redirection that the tests use: stdout into a file that the test reads. See criterion.h.
#ifndef FARM_CRITERION_MINIMAL_REDIRECT_H
#define FARM_CRITERION_MINIMAL_REDIRECT_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE *lite_redirected;

__attribute__((unused)) static void cr_redirect_stdout(void) {
    lite_redirected = tmpfile();
    if (!lite_redirected || dup2(fileno(lite_redirected), STDOUT_FILENO) < 0) abort();
}

// From its beginning; what is printed later does not appear.
__attribute__((unused)) static FILE *cr_get_redirected_stdout(void) {
    fflush(stdout);
    rewind(lite_redirected);
    return lite_redirected;
}

#endif
