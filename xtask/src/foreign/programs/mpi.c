/* Messages between two or more ranks of MPI: a ring, sums, and loops that measure. Each byte is checked.
   Usage: mpirun -np N mpi TEST */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 1 << 20, ROUNDS = 200, WINDOW = 16 };

static int rank, ranks;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(unsigned char *bytes, int count, int seed)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)(i * 7 + seed);
}

static void check(const unsigned char *bytes, int count, int seed)
{
    for (int i = 0; i < count; i++)
        if (bytes[i] != (unsigned char)(i * 7 + seed))
            fail("a message has other bytes than were sent");
}

/* A message of each size passes each rank, and gets the rank's seed there. */
static void ring(unsigned char *bytes)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int count = 1; count <= LARGEST; count *= 4) {
        fill(bytes, count, rank);
        if (rank == 0)
            MPI_Send(bytes, count, MPI_BYTE, next, count, MPI_COMM_WORLD);
        MPI_Recv(bytes, count, MPI_BYTE, previous, count, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(bytes, count, previous);
        fill(bytes, count, rank);
        if (rank != 0)
            MPI_Send(bytes, count, MPI_BYTE, next, count, MPI_COMM_WORLD);
    }
}

static void allreduce(unsigned char *bytes)
{
    long *own = (long *)bytes, *sums = malloc(LARGEST);
    for (int count = 1; count <= LARGEST / (int)sizeof *own; count *= 8) {
        for (int i = 0; i < count; i++)
            own[i] = (long)i * (rank + 1);
        MPI_Allreduce(own, sums, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            if (sums[i] != (long)i * ranks * (ranks + 1) / 2)
                fail("a sum is wrong");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(sums);
}

/* The first two ranks send messages of eight bytes back and forth. */
static void latency(unsigned char *bytes)
{
    int count = 8, peer = 1 - rank;
    for (int i = 0; i < ROUNDS * 10; i++) {
        fill(bytes, count, i);
        if (rank == 0)
            MPI_Send(bytes, count, MPI_BYTE, peer, i, MPI_COMM_WORLD);
        memset(bytes, 0, (size_t)count * (rank == 1));
        MPI_Recv(bytes, count, MPI_BYTE, peer, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(bytes, count, i);
        if (rank == 1)
            MPI_Send(bytes, count, MPI_BYTE, peer, i, MPI_COMM_WORLD);
    }
}

/* The first rank sends windows of messages, and the second one acknowledges each window. */
static void bandwidth(unsigned char *bytes)
{
    int count = LARGEST / WINDOW, token = 0;
    MPI_Request requests[WINDOW];
    for (int i = 0; i < ROUNDS; i++) {
        for (int j = 0; j < WINDOW; j++) {
            unsigned char *part = bytes + (size_t)j * (size_t)count;
            if (rank == 0) {
                fill(part, count, i + j);
                MPI_Isend(part, count, MPI_BYTE, 1, j, MPI_COMM_WORLD, &requests[j]);
            } else {
                MPI_Irecv(part, count, MPI_BYTE, 0, j, MPI_COMM_WORLD, &requests[j]);
            }
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        for (int j = 0; j < WINDOW && rank == 1; j++)
            check(bytes + (size_t)j * (size_t)count, count, i + j);
        if (rank == 0)
            MPI_Recv(&token, 1, MPI_INT, 1, WINDOW, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&token, 1, MPI_INT, 0, WINDOW, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(unsigned char *);
    } tests[] = {{"ring", ring}, {"allreduce", allreduce}, {"latency", latency}, {"bandwidth", bandwidth}};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *bytes = malloc(LARGEST);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
            double begin = MPI_Wtime();
            tests[i].run(bytes);
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0)
                printf("finished: %s in %.3f s\n", argv[1], MPI_Wtime() - begin);
        }
    }
    free(bytes);
    MPI_Finalize();
    return 0;
}
