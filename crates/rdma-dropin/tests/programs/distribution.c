/* A stand-in for the distribution's libibverbs. It has one device, whose provider is in another library. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device {
    void *ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
struct context {
    struct device *device;
    char rest[2048];
};
struct object {
    struct context *context;
};
struct event {
    struct object *element;
    int type;
};

static struct context *(*alloc_context)(struct device *device);
static struct object queue_pair;

void verbs_register_driver_34(void *alloc)
{
    puts("registered");
    alloc_context = (struct context * (*)(struct device *)) alloc;
}

struct device **ibv_get_device_list(int *count)
{
    if (!alloc_context && !dlopen(getenv("STAND_IN_PROVIDER"), RTLD_NOW))
        puts(dlerror());
    struct device **list = calloc(2, sizeof(*list));
    list[0] = calloc(1, sizeof(**list));
    strcpy(list[0]->name, "stand0");
    *count = 1;
    return list;
}

void ibv_free_device_list(struct device **list)
{
    puts("the list is freed");
    free(list[0]);
    free(list);
}

const char *ibv_get_device_name(struct device *device) { return device->name; }
struct context *ibv_open_device(struct device *device) { return alloc_context(device); }

void *verbs_open_device(struct device *device, void *private)
{
    printf("opened with %s\n", (char *)private);
    return alloc_context(device);
}

int ibv_close_device(struct context *context)
{
    puts("closed");
    free(context);
    return 0;
}

/* The functions for providers. */
void *_verbs_init_and_alloc_context(struct device *device, int fd, size_t size, void *offset, unsigned driver)
{
    struct context *context = calloc(1, size);
    context->device = device;
    printf("allocated: %d %p %u\n", fd, offset, driver);
    return context;
}

void verbs_set_ops(struct context *context, void *ops)
{
    printf("set %s of %s\n", (char *)ops, context->device->name);
}

void __verbs_log(void *context, unsigned level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
}

int ibv_cmd_create_qp_ex(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j)
{
    return a + b + c + d + e + f + g + h + 10 * i + 100 * j;
}

int ibv_dontfork_range(void *base, size_t size) { return base == NULL && size == 7 ? 77 : 0; }

/* The verbs for programs. */
int ibv_fork_init(void)
{
    puts("fork_init");
    return 0;
}

struct object *ibv_alloc_pd(struct context *context)
{
    struct object *pd = malloc(sizeof(*pd));
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct object *pd)
{
    puts("a domain is freed");
    free(pd);
    return 0;
}

int ibv_query_gid_type(struct context *context, unsigned char port, unsigned index, unsigned *type)
{
    *type = 10 * port + index;
    return 0;
}

int ibv_get_async_event(struct context *context, struct event *event)
{
    queue_pair.context = context;
    event->element = &queue_pair;
    event->type = 1; /* IBV_EVENT_QP_FATAL */
    return 0;
}

void ibv_ack_async_event(struct event *event) { puts("acknowledged"); }

#define UNUSED(name) \
    int name(void) { return ENOSYS; }

UNUSED(ibv_get_device_guid) UNUSED(ibv_query_device) UNUSED(ibv_query_port) UNUSED(ibv_query_gid)
UNUSED(ibv_query_pkey) UNUSED(ibv_reg_mr) UNUSED(ibv_rereg_mr) UNUSED(ibv_dereg_mr)
UNUSED(ibv_create_comp_channel) UNUSED(ibv_destroy_comp_channel) UNUSED(ibv_create_cq) UNUSED(ibv_resize_cq)
UNUSED(ibv_destroy_cq) UNUSED(ibv_get_cq_event) UNUSED(ibv_ack_cq_events) UNUSED(ibv_create_srq)
UNUSED(ibv_modify_srq) UNUSED(ibv_query_srq) UNUSED(ibv_destroy_srq) UNUSED(ibv_create_qp) UNUSED(ibv_modify_qp)
UNUSED(ibv_query_qp) UNUSED(ibv_destroy_qp) UNUSED(ibv_create_ah) UNUSED(ibv_create_ah_from_wc)
UNUSED(ibv_init_ah_from_wc) UNUSED(ibv_destroy_ah) UNUSED(ibv_attach_mcast) UNUSED(ibv_detach_mcast)
UNUSED(ibv_wc_status_str) UNUSED(ibv_event_type_str) UNUSED(ibv_node_type_str) UNUSED(ibv_port_state_str)
