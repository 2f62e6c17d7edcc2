//! Two processes exchange a message by RDMA: one sends `hello`, and the other answers in capitals.
//!
//! The environment variable `RDMA_DEVICE` names the device. By default it is the first NIC with an active port,
//! and a software device on a machine without one.

use std::error::Error;

use rdma::prelude::*;

fn listen(address: &str) -> Result<(), Box<dyn Error>> {
    let pd = open_default_device()?.allocate_pd()?;
    let mut listener = pd.create_channel().listen(address)?;
    println!("listening on {}", listener.local_addr());
    let mut channel = listener.accept()?;
    let mut buffer = pd.allocate_region(64)?;
    let length = channel.receive_into(&mut buffer)?;
    buffer[..length].make_ascii_uppercase();
    channel.send_from(buffer.get_ref(0, length).ok_or("too long")?)?;
    Ok(())
}

fn connect(address: &str) -> Result<(), Box<dyn Error>> {
    let pd = open_default_device()?.allocate_pd()?;
    let mut channel = Channel::connect(address, &pd)?;
    let mut answer = pd.allocate_region(64)?;
    // Posts the receive before it sends, so that the answer finds it.
    let length = channel.exchange_inline(b"hello", &mut answer)?;
    println!("{}", String::from_utf8_lossy(&answer[..length]));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => listen(address),
        ["connect", address] => connect(address),
        _ => Err("usage: hello listen|connect HOST:PORT".into()),
    }
}
