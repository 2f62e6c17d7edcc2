//! The page that lists the functions of librdmacm.

/// librdmacm of rdma-core 44, whose functions for sockets begin with `r` alone.
#[test]
fn each_function_of_librdmacm_is_on_the_page() {
    let symbols = include_str!("../../rdma-dropin-cm/symbols/rdma-core-44.txt");
    let page = include_str!("../../../docs/from-c-verbs.md");
    let names = symbols.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let names: Vec<_> = names.filter(|name| name.starts_with("rdma_")).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
