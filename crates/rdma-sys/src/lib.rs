//! libibverbs as it is: bindings, run-time loader, the table of verbs, the inline functions of verbs.h.
