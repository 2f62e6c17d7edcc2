//! Inline data is read at the post, so its bytes live as long as its element.

use rdma_mem::InlineElement;

pub fn main() {
    let (bytes, other) = (vec![1_u8; 8], vec![2_u8; 8]);
    let element = InlineElement::new(&bytes);
    drop(other);
    println!("{element:?}");
}
