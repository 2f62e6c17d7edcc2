/* Cancels threads that wait in the library. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

void **ibv_get_device_list(int *count);
void *ibv_open_device(void *device);
int ibv_close_device(void *context);
void *ibv_create_comp_channel(void *context);
int ibv_destroy_comp_channel(void *channel);
int ibv_get_cq_event(void *channel, void **cq, void **cq_context);
int ibv_get_async_event(void *context, void *event);

static void *completion(void *channel)
{
    void *cq, *cq_context;
    ibv_get_cq_event(channel, &cq, &cq_context);
    return NULL;
}

static void *asynchronous(void *context)
{
    char event[64];
    ibv_get_async_event(context, event);
    return NULL;
}

static void cancel(const char *name, void *(*wait)(void *), void *argument)
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, wait, argument);
    usleep(20000); /* The result is the same if the thread does not wait yet. */
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("%s event: %s\n", name, result == PTHREAD_CANCELED ? "cancelled" : "returned");
}

int main(void)
{
    int count;
    void **list = ibv_get_device_list(&count);
    void *context = ibv_open_device(list[0]);
    void *channel = ibv_create_comp_channel(context);
    cancel("completion", completion, channel);
    cancel("asynchronous", asynchronous, context);
    return ibv_destroy_comp_channel(channel) || ibv_close_device(context);
}
