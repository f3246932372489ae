//! Connections: TLS where wanted, HTTP/1.1 and HTTP/2, until the server shall stop.

use crate::pki::TlsConfig;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// Connections at once; who comes later waits.
const CONNECTIONS_MAX: usize = 4096;
/// Time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the operating system refused to accept, for example for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time for requests under way when the server stops; watches end with it.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves `router` on `listener` until `shutdown` is done.
///
/// # Errors
/// When the TLS configuration cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsConfig>,
    router: axum::Router,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let acceptor = tls.map(|tls| TlsAcceptor::from(tls.0));
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (stop, stopped) = watch::channel(false);
    tokio::pin!(shutdown);
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = &mut shutdown => break,
            next = next => next,
        };
        let slot = slot.map_err(io::Error::other)?;
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        // Small answers must not wait for the acknowledgement of earlier ones.
        let _ = stream.set_nodelay(true);
        let (router, acceptor, stopped) = (router.clone(), acceptor.clone(), stopped.clone());
        tokio::spawn(async move {
            let _slot = slot;
            match acceptor {
                None => connection(stream, router, stopped).await,
                Some(acceptor) => {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => connection(stream, router, stopped).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                }
            }
        });
    }
    drop(listener);
    let _ = stop.send(true);
    // Requests under way get a moment to end; who is still there then is cut off.
    let all = u32::try_from(CONNECTIONS_MAX - 1).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, slots.acquire_many(all)).await;
    Ok(())
}

async fn connection<S>(stream: S, router: axum::Router, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = Builder::new(TokioExecutor::new());
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(SHUTDOWN_TIMEOUT, connection).await {
                Ok(result) => result,
                Err(_) => Ok(()),
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended badly");
    }
}
