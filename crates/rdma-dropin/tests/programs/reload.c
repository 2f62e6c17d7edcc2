/* Loads and unloads the library with an open context. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *first = NULL;
    for (int round = 0; round < 2; round++) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return puts(dlerror());
        void **(*get_device_list)(int *) = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
        void *(*open_device)(void *) = (void *(*)(void *))dlsym(library, "ibv_open_device");
        int (*close_device)(void *) = (int (*)(void *))dlsym(library, "ibv_close_device");
        int count;
        void **list = get_device_list(&count);
        void *context = open_device(list[0]);
        printf("%d devices, %s\n", count, context ? "opened" : "not opened");
        if (!first)
            first = context;
        else
            puts(close_device(first) == 0 ? "the first one is closed" : "not closed");
        dlclose(library);
    }
    return 0;
}
