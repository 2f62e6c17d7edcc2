/* Uses the devices of all providers. */
#include <stdio.h>

struct event {
    void *element;
    int type;
};

void **ibv_get_device_list(int *count);
void ibv_free_device_list(void **list);
const char *ibv_get_device_name(void *device);
void *ibv_open_device(void *device);
void *verbs_open_device(void *device, void *private);
int ibv_close_device(void *context);
int ibv_fork_init(void);
void *ibv_alloc_pd(void *context);
int ibv_dealloc_pd(void *pd);
int ibv_query_gid_type(void *context, unsigned char port, unsigned index, unsigned *type);
int ibv_get_async_event(void *context, struct event *event);
void ibv_ack_async_event(struct event *event);

int main(void)
{
    setbuf(stdout, NULL);
    int count = 0;
    ibv_fork_init();
    void **list = ibv_get_device_list(&count);
    if (!list)
        return 1;
    printf("%d devices, %s\n", count, list[count] ? "not terminated" : "terminated");
    for (int n = 0; n < count; n++) {
        const char *name = ibv_get_device_name(list[n]);
        printf("-- %s\n", name);
        void *context = ibv_open_device(list[n]);
        void *pd = ibv_alloc_pd(context);
        unsigned type = 0;
        int queried = ibv_query_gid_type(context, 1, 1, &type);
        printf("domain: %s, type: %d %u\n", pd ? "allocated" : "none", queried, type);
        if (name[1] == 't') {
            struct event event;
            ibv_get_async_event(context, &event);
            ibv_ack_async_event(&event);
        }
        printf("freed: %d\n", ibv_dealloc_pd(pd));
        printf("closed: %d\n", ibv_close_device(context));
        context = verbs_open_device(list[n], "attributes");
        if (context)
            ibv_close_device(context);
    }
    ibv_free_device_list(list);
    return 0;
}
