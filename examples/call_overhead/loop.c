/* The loop of main.rs in C, linked with the same libraries: reads a number of calls a line, answers with the nanoseconds. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct { char internal[128]; } Id;
int ncclGetVersion(int *);
#ifdef WITH_CUDA
int ncclGetUniqueId(Id *);
int ncclCommInitRank(void **, int, Id, int);
int ncclCommCount(void *, int *);
int cuInit(unsigned);
int cuDriverGetVersion(int *);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxGetCurrent(void **);
int cuStreamCreate(void **, unsigned);
int cuStreamQuery(void *);
#endif

static volatile int result;

/* Each result is stored, as the other loops keep theirs. */
#define ONE(call) result = call;
#define EIGHT(call) ONE(call) ONE(call) ONE(call) ONE(call) ONE(call) ONE(call) ONE(call) ONE(call)
#define MEASURE(call)                                                                                       \
    while (scanf("%ld", &calls) == 1) {                                                                     \
        struct timespec start, end;                                                                         \
        clock_gettime(CLOCK_MONOTONIC, &start);                                                             \
        for (long i = 0; i < calls / 8; i++) { EIGHT(call) }                                                \
        clock_gettime(CLOCK_MONOTONIC, &end);                                                               \
        printf("%.0f\n", (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec));                \
        fflush(stdout);                                                                                     \
    }

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    long calls;
    int number = 0;
#ifdef WITH_CUDA
    /* The same surroundings as main.rs has: a communicator makes other calls slower. */
    void *context, *stream, *comm;
    Id id;
    int gpu = !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context) &&
              !ncclGetUniqueId(&id) && !ncclCommInitRank(&comm, 1, id, 0) && !cuStreamCreate(&stream, 1);
    if (!strcmp(name, "cuDriverGetVersion")) { MEASURE(cuDriverGetVersion(&number)) return 0; }
    if (gpu && !strcmp(name, "ncclCommCount")) { MEASURE(ncclCommCount(comm, &number)) return 0; }
    if (gpu && !strcmp(name, "cuCtxGetCurrent")) { MEASURE(cuCtxGetCurrent(&context)) return 0; }
    if (gpu && !strcmp(name, "cuStreamQuery")) { MEASURE(cuStreamQuery(stream)) return 0; }
#endif
    if (!strcmp(name, "ncclGetVersion")) { MEASURE(ncclGetVersion(&number)) return 0; }
    return 1;
}
