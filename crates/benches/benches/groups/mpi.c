/* The collectives of the bench `groups`, with MPI. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 15, LONG = 1 << 18 };

static int rank;
static float *numbers;

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void short_sum(void)
{
    double number = 1;
    MPI_Allreduce(MPI_IN_PLACE, &number, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void long_sum(void)
{
    MPI_Allreduce(MPI_IN_PLACE, numbers, LONG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Prints the time of a call on rank 0. The first batch is not measured. */
static void measure(const char *name, int calls, void (*call)(void))
{
    double times[BATCHES];
    for (int batch = 0; batch <= BATCHES; batch++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        for (int i = 0; i < calls; i++)
            call();
        if (batch > 0)
            times[batch - 1] = (MPI_Wtime() - begin) * 1e6 / calls;
    }
    qsort(times, BATCHES, sizeof *times, compare);
    if (rank == 0)
        printf("%s: %.2f\n", name, times[BATCHES / 2]);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    numbers = calloc(LONG, sizeof *numbers);
    measure("barrier", 2000, barrier);
    measure("all_reduce of 8 B", 2000, short_sum);
    measure("all_reduce of 1 MiB", 40, long_sum);
    free(numbers);
    MPI_Alloc_mem(LONG * sizeof *numbers, MPI_INFO_NULL, &numbers);
    memset(numbers, 0, LONG * sizeof *numbers);
    measure("all_reduce of 1 MiB, registered", 40, long_sum);
    MPI_Free_mem(numbers);
    MPI_Finalize();
    return 0;
}
