//! Commands beside a pod, over WebSocket: `v5.channel.k8s.io` and `v4.channel.k8s.io`.
//!
//! Each message starts with the number of its channel: input, output, errors, status, size of the terminal. Version 5
//! adds a message that closes one channel, so that the end of the input can be told.

use super::{App, Call};
use crate::error::{bad_request, to_status};
use crate::pods::ExecSession;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use regatta_kit::ApiError;
use regatta_types::streams::{ExecRequest, TerminalSize};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Largest message from a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Messages to a client that may wait.
const OUTGOING_MAX: usize = 32;

pub(super) async fn answer(
    app: &Arc<App>,
    namespace: &str,
    pod: &str,
    call: Call,
) -> Result<Response, ApiError> {
    let options = options(&call)?;
    let Some(upgrade) = call.upgrade else {
        return Err(bad_request("exec needs a WebSocket connection; kubectl 1.31 and later use one"));
    };
    let upgrade =
        upgrade.max_message_size(MESSAGE_BYTES_MAX).protocols(["v5.channel.k8s.io", "v4.channel.k8s.io"]);
    let session = app.pods.exec(namespace, pod, options).await?;
    Ok(upgrade.on_upgrade(move |socket| run(socket, session)))
}

fn options(call: &Call) -> Result<ExecRequest, ApiError> {
    let query = &call.query;
    let command: Vec<String> = query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(bad_request("you must specify at least 1 command for the container"));
    }
    let options = ExecRequest {
        container: query.get("container").map(str::to_owned),
        command,
        stdin: query.is_set("stdin"),
        stdout: query.is_set("stdout"),
        stderr: query.is_set("stderr"),
        tty: query.is_set("tty"),
        rank: None,
    };
    if !options.stdin && !options.stdout && !options.stderr {
        return Err(bad_request("you must specify at least one of stdin, stdout, stderr"));
    }
    Ok(options)
}

async fn run(socket: WebSocket, mut session: ExecSession) {
    let (mut to_client, mut from_client) = socket.split();
    let (outgoing, mut queue) = mpsc::channel::<Message>(OUTGOING_MAX);
    let streams = [(STDOUT, session.stdout.take()), (STDERR, session.stderr.take())];
    let mut pumps: tokio::task::JoinSet<()> = tokio::task::JoinSet::new();
    for (channel, stream) in streams {
        if let Some(stream) = stream {
            pumps.spawn(pump(channel, stream, outgoing.clone()));
        }
    }
    let (stdin, resize) = (session.stdin.take(), session.resize.take());
    let mut input = tokio::spawn(async move {
        let mut stdin = stdin;
        while let Some(Ok(message)) = from_client.next().await {
            let Message::Binary(bytes) = message else { continue };
            match bytes.split_first() {
                Some((&STDIN, data)) => {
                    if let Some(sender) = &stdin
                        && sender.send(Bytes::copy_from_slice(data)).await.is_err()
                    {
                        stdin = None;
                    }
                }
                Some((&CLOSE, [STDIN])) => stdin = None,
                Some((&RESIZE, data)) => {
                    if let (Some(sender), Some(size)) = (&resize, terminal_size(data)) {
                        let _ = sender.send(size).await;
                    }
                }
                _ => {}
            }
        }
    });
    let exit = session.exit;
    let finish = async move {
        let status = exit.await;
        // All output comes before the status, or the client would stop listening too early.
        while pumps.join_next().await.is_some() {}
        let _ = outgoing.send(message(STATUS, exit_status(&status).to_string().as_bytes())).await;
        drop(outgoing);
    };
    let send = async move {
        while let Some(message) = queue.recv().await {
            if to_client.send(message).await.is_err() {
                return;
            }
        }
        let _ = to_client
            .send(Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: "".into() })))
            .await;
    };
    tokio::pin!(finish, send);
    // A client that goes away ends its input, and with it the session: dropping what is left ends the command.
    let mut finished = false;
    let mut listening = true;
    loop {
        tokio::select! {
            () = &mut finish, if !finished => finished = true,
            _ = &mut input, if listening => {
                listening = false;
                if !finished {
                    break;
                }
            }
            () = &mut send => break,
        }
    }
    input.abort();
}

async fn pump(channel: u8, mut stream: mpsc::Receiver<Bytes>, outgoing: mpsc::Sender<Message>) {
    while let Some(bytes) = stream.recv().await {
        if outgoing.send(message(channel, &bytes)).await.is_err() {
            return;
        }
    }
}

fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = Vec::with_capacity(data.len() + 1);
    bytes.push(channel);
    bytes.extend_from_slice(data);
    Message::Binary(bytes.into())
}

fn terminal_size(data: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(data).ok()?;
    let number = |name: &str| size[name].as_u64().and_then(|n| u16::try_from(n).ok());
    Some(TerminalSize { columns: number("Width")?, rows: number("Height")? })
}

fn exit_status(exit: &Result<i32, ApiError>) -> Value {
    match exit {
        Ok(0) => json!({"metadata": {}, "status": "Success"}),
        Ok(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(error) => to_status(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_told() {
        assert_eq!(exit_status(&Ok(0))["status"], "Success");
        assert_eq!(exit_status(&Ok(3))["details"]["causes"][0]["message"], "3");
        assert_eq!(exit_status(&Err(bad_request("no")))["code"], 400);
        assert_eq!(
            terminal_size(br#"{"Width":80,"Height":24}"#),
            Some(TerminalSize { columns: 80, rows: 24 })
        );
        assert_eq!(terminal_size(b"{}"), None);
    }
}
