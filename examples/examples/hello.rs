//! Two processes, each of ten lines: one says hello, and the other one says it louder.

use std::error::Error;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use rdma::prelude::*;

fn listen(address: &str, device: &str) -> Result<(), Box<dyn Error>> {
    let pd = open_device(device)?.allocate_pd()?;
    let mut listener = pd.create_channel().listen(address)?;
    writeln!(stdout(), "listening on {}", listener.local_addr())?;
    let mut channel = listener.accept()?;
    let mut buffer = pd.allocate_region(64)?;
    let length = channel.receive_into(&mut buffer)?;
    buffer[..length].make_ascii_uppercase();
    channel.send_from(buffer.get_ref(0, length).ok_or("it is too long")?)?;
    Ok(())
}

fn connect(address: &str, device: &str) -> Result<(), Box<dyn Error>> {
    let pd = open_device(device)?.allocate_pd()?;
    let mut channel = Channel::connect(address, &pd)?;
    let mut answer = pd.allocate_region(64)?;
    let length = channel.exchange_inline(b"hello", &mut answer)?; // the answer has its receive before it comes
    writeln!(stdout(), "{}", String::from_utf8_lossy(&answer[..length]))?;
    Ok(())
}

fn help() -> Result<(), Box<dyn Error>> {
    writeln!(stdout(), "Usage: hello listen|connect HOST:PORT [--device NAME]")?;
    let devices = list_devices();
    let names: Vec<_> = devices.iter().map(|device| device.name()).collect();
    writeln!(stdout(), "Devices: {}", names.join(", "))?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (arguments, device) = match &arguments[..] {
        [rest @ .., "--device", device] => (rest, *device),
        all => (all, "soft0"), // or softib0, or a device of the machine's own
    };
    let outcome = match arguments {
        ["listen", address] => listen(address, device),
        ["connect", address] => connect(address, device),
        ["--help"] => help(),
        other => Err(format!(
            "start `hello listen ADDRESS`, and then `hello connect ADDRESS`, not `hello {}`; see `hello --help`",
            other.join(" ")
        )
        .into()),
    };
    if let Err(error) = &outcome {
        let _ = writeln!(stderr(), "error: {error}");
    }
    ExitCode::from(u8::from(outcome.is_err()))
}
