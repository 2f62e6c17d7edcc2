/* The library of a provider. It needs `libibverbs.so.1`, by which the loader gives it the library under test. */
#include <stddef.h>
#include <stdio.h>

void verbs_register_driver_34(void *alloc);
void *_verbs_init_and_alloc_context(void *device, int fd, size_t size, void *offset, unsigned driver);
void verbs_set_ops(void *context, const char *ops);
void __verbs_log(void *context, unsigned level, const char *format, ...);
int ibv_cmd_create_qp_ex(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j);
int ibv_dontfork_range(void *base, size_t size);

static void *alloc_context(void *device)
{
    void *context = _verbs_init_and_alloc_context(device, 5, 4096, (void *)24, 99);
    verbs_set_ops(context, "operations");
    __verbs_log(context, 2, "logged: %s %d %.1f %d %d\n", "text", 1, 2.5, 3, 4);
    printf("a command: %d\n", ibv_cmd_create_qp_ex(1, 1, 1, 1, 1, 1, 1, 1, 2, 3));
    printf("a range: %d\n", ibv_dontfork_range(NULL, 7));
    return context;
}

__attribute__((constructor)) static void initialise(void)
{
    verbs_register_driver_34((void *)alloc_context);
}
