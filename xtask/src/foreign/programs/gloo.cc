// Collectives of Gloo between processes, over its transport for ibverbs. Each result is checked.
// Usage: gloo FOLDER RANK RANKS, with an empty folder in which the processes find each other
//
// The algorithms and their memory are never freed, because Gloo aborts if a buffer still has a request when it ends.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

using gloo::rendezvous::Context;
static const int ROUNDS = 20;

static void expect(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s: a wrong value\n", what);
        exit(1);
    }
}

template <class Algorithm> static void allreduce(const std::shared_ptr<Context> &context, int count, const char *what)
{
    double *values = new double[count];
    auto *algorithm = new Algorithm(context, {values}, count);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < count; i++)
            values[i] = (context->rank + 1.0) * (i + round);
        algorithm->run();
        for (int i = 0; i < count; i++)
            expect(values[i] == context->size * (context->size + 1) / 2.0 * (i + round), what);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    gloo::rendezvous::FileStore store(argv[1]);
    auto context = std::make_shared<Context>(atoi(argv[2]), atoi(argv[3]));
    auto device = gloo::transport::ibverbs::CreateDevice({"soft0", 1, 1});
    context->connectFullMesh(store, device);
    for (int count = 1; count <= 1 << 17; count *= 8) {
        allreduce<gloo::AllreduceRingChunked<double>>(context, count, "ring");
        allreduce<gloo::AllreduceHalvingDoubling<double>>(context, count, "halving and doubling");
        int *values = new int[count]();
        values[count - 1] = context->rank;
        (new gloo::BroadcastOneToAll<int>(context, {values}, count, 1))->run();
        expect(values[count - 1] == 1, "broadcast");
    }
    (new gloo::BarrierAllToAll(context))->run();
    printf("finished: allreduce in two ways and broadcast, up to 1 MiB\n");
}
