//! Inline data is read at the post: a request of a batch borrows it until then.

use rdma_mem::InlineElement;
use rdma_qp::SendWorkRequest;

pub fn main() {
    let (bytes, other) = (vec![1_u8; 8], vec![2_u8; 8]);
    let elements = [InlineElement::new(&bytes)];
    let batch = [SendWorkRequest::inline(&elements).with_id(1)];
    drop(other);
    println!("{batch:?}");
}
