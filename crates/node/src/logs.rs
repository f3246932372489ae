//! Reads the logs that agents write: several files of several ranks as one stream, from any end of it, while it grows.

mod merge;
mod place;
mod prune;
mod rank_file;

pub(crate) use place::LogPlace;
pub(crate) use prune::prune;

use crate::actor::Progress;
use crate::error::Error;
use crate::readiness;
use bytes::Bytes;
use futures::stream::BoxStream;
use merge::Merge;
use regatta_types::streams::LogRequest;
use rustix::fs::inotify;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

/// Chunks that may wait for a slow reader.
const CHUNKS_MAX: usize = 8;

/// Opens a log.
pub(crate) async fn open(
    place: LogPlace,
    request: LogRequest,
) -> Result<BoxStream<'static, Result<Bytes, io::Error>>, Error> {
    let container = place.container(&request)?;
    if request.previous {
        return Err(Error::NoPreviousLog { pod: place.pod.clone(), container: container.name });
    }
    let directory = container.directory;
    let mut progress = place.progress.clone().filter(|_| request.follow);
    // The watch comes before the first look: nothing that is written between the two is missed.
    let changes = match &mut progress {
        Some(progress) => {
            place.wait_for_directory(&directory, progress).await;
            Some(Changes::watch(&directory).map_err(|e| Error::file("watch", &directory, e))?)
        }
        None => None,
    };
    let merge = Merge::open(&directory, &place.pod, request).await?;
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::spawn(feed(merge, progress.zip(changes), sender));
    Ok(Box::pin(futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    })))
}

/// Reads until the end, which for a log that is followed comes when the pod has ended.
async fn feed(
    mut merge: Merge,
    mut follow: Option<(watch::Receiver<Progress>, Changes)>,
    sender: mpsc::Sender<Result<Bytes, io::Error>>,
) {
    loop {
        // The pod's end is looked at before the read: what it wrote last is then surely read.
        let ended = follow.as_ref().is_none_or(|(progress, _)| *progress.borrow() == Progress::Ended);
        loop {
            let (back, chunk) = merge.next_chunk().await;
            merge = back;
            match chunk {
                Ok(Some(chunk)) => {
                    if sender.send(Ok(chunk)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // Nobody may be left to hear it.
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        }
        if ended || merge.is_full() {
            return;
        }
        let Some((progress, changes)) = &mut follow else { return };
        tokio::select! {
            () = sender.closed() => return,
            changed = progress.changed() => {
                // Without its sender the pod is forgotten: one last look, then the end.
                if changed.is_err() {
                    follow = None;
                }
            }
            () = changes.next() => {}
        }
    }
}

/// Changes in a directory.
struct Changes {
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl Changes {
    fn watch(directory: &Path) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let kinds = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        match inotify::add_watch(&inotify, directory, kinds) {
            Ok(_) => Ok(Self { inotify: Some(readiness::watch(inotify)?) }),
            // A pod that never started has no directory; its end is told otherwise.
            Err(rustix::io::Errno::NOENT) => Ok(Self { inotify: None }),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a change, however many there were.
    async fn next(&mut self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        let mut buffer = [0; 4096];
        loop {
            let Ok(mut ready) = inotify.readable().await else { return };
            let read = ready.try_io(|fd| rustix::io::read(fd.as_fd(), &mut buffer).map_err(io::Error::from));
            if read.is_ok() {
                return;
            }
        }
    }
}
