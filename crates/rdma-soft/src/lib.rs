//! A software RDMA device at the C ABI of libibverbs: no kernel module, no root, no C library.
