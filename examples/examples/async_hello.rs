//! The program `hello` with futures, on tokio: one process sends `hello`, and the other answers in capitals.

use std::error::Error;

use rdma::aio::*;

async fn listen(address: &str) -> Result<(), Box<dyn Error>> {
    let (endpoint, listener) = rdma::aio::listen(address).await?;
    println!("listening on {}", listener.local_addr());
    let connection = listener.accept().await?;
    let mut question = connection.receive(endpoint.allocate(64).await?).await?;
    question.memory[..question.length].make_ascii_uppercase();
    connection.send(question.memory.slice(0..question.length)).await?;
    Ok(())
}

async fn connect(address: &str) -> Result<(), Box<dyn Error>> {
    let (endpoint, connection) = rdma::aio::connect(address).await?;
    let answer = connection.receive(endpoint.allocate(64).await?).post().await?;
    connection.send(endpoint.buffer(b"hello").await?).await?;
    let answer = answer.await?;
    println!("{}", String::from_utf8_lossy(&answer.memory[..answer.length]));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => listen(address).await,
        ["connect", address] => connect(address).await,
        _ => Err("usage: async_hello listen|connect HOST:PORT".into()),
    }
}
