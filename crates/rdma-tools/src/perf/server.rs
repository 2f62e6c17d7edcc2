//! The server: the end that runs its part of the measurement as the client requests.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context as _, bail};

use crate::output::{print, warn};
use crate::perf::ends::{End, Local, Plan, connected};
use crate::perf::protocol::{Block, Control, Reply, Request, Work, send};
use crate::perf::scale;
use crate::perf::settings::{Settings, name};

/// Serves one client after another, or only one if `once` is set.
///
/// # Errors
/// Returns an error if this end cannot listen at the address or accept a client. With `once`, also
/// returns the error of serving the client.
pub(crate) fn listen(address: &str, local: &Local, once: bool) -> anyhow::Result<()> {
    let hint =
        || format!("cannot listen on {address}: use another HOST:PORT; port 0 is any free one");
    let listener = TcpListener::bind(address).with_context(hint)?;
    print(format_args!("listening on {}", listener.local_addr()?))?;
    loop {
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue, // the client has already left
            Err(error) => return Err(error).context("cannot accept a client"),
        };
        let announce = |settings: &Settings| {
            let (measure, operation) = (name(settings.measure), name(settings.operation));
            // The server continues even if standard output is closed.
            let _ = print(format_args!("{client} measures {measure} {operation}"));
        };
        match serve(stream, local, announce) {
            Err(error) if !once => warn(format_args!("error: {client}: {error:#}")),
            outcome if once => return outcome,
            _ => {}
        }
    }
}

/// Serves one client. Sends errors to the client as well.
///
/// # Errors
/// Returns an error if the client has another version, leaves early, or requests something
/// impossible.
pub(crate) fn serve(
    stream: TcpStream,
    local: &Local,
    announce: impl FnOnce(&Settings),
) -> anyhow::Result<()> {
    let mut control = Control::meet(stream, Arc::default(), true)?;
    let outcome = run(&mut control, local, announce);
    let outcome = outcome.map_err(|error| control.explained(error));
    if let Err(error) = &outcome {
        // The client may already have left.
        let _ = control.send(&Reply::Failed(format!("{error:#}")));
    }
    outcome
}

fn run(
    control: &mut Control,
    local: &Local,
    announce: impl FnOnce(&Settings),
) -> anyhow::Result<()> {
    let Request::Prepare(settings) = control.receive()? else {
        bail!("the client requested a block before it sent its settings");
    };
    settings.check(&local.context)?;
    announce(&settings);
    connected(local, &settings, control, |control, end, _| {
        loop {
            match control.receive()? {
                Request::Run(block) => run_block(control, end, &block, &settings)?,
                Request::End => return Ok(()),
                Request::Prepare(_) => bail!("the client sent its settings twice"),
            }
        }
    })
}

fn run_block(
    control: &mut Control,
    end: &mut dyn End,
    block: &Block,
    settings: &Settings,
) -> anyhow::Result<()> {
    let plan = Plan::new(block, settings)?;
    let stream = control.stream().try_clone()?;
    match block.work {
        Work::Rdma => {
            end.server(&plan, &mut control.watch, &mut || send(&stream, &Reply::Ready))?;
        }
        Work::Tcp => {
            control.send(&Reply::Ready)?;
            scale::tcp_server(&stream, &plan)?;
        }
        Work::Memcpy | Work::Perftest => {
            bail!("the client requested work that the server does not do")
        }
    }
    control.send(&Reply::Done)
}
