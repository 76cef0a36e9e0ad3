//! `towpath top`: a running `towpath` in a terminal.
//!
//! ```text
//!   control socket ──State──► App ──tables──► picture ──cells──► Screen
//!        (fetch, a thread)     ▲
//!   keyboard ──Key─────────────┘
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | the command: asks, waits for keys, draws |
//! | `app` | [`App`]: the last two documents, and what the user chose |
//! | `tables` | the rows of each view, from two documents |
//! | `layout` | columns in the width of a terminal; sorting and filtering |
//! | `picture` | an [`App`] as lines of text with styles |
//! | `screen` | the terminal: raw mode, alternate screen, restored whatever happens |
//! | `keys` | bytes of a keyboard as [`Key`](keys::Key)s |
//!
//! The terminal is read here and not by a library of events: reading must end when the terminal is
//! gone. The document is fetched on another thread, so that keys work while an instance does not
//! answer. When the instance ends, the last picture stays, and says so.

mod app;
mod keys;
mod layout;
mod picture;
mod screen;
mod tables;

pub(crate) use app::View;

use crate::args::Top;
use crate::control::ask_state;
use crate::output::outln;
use crate::state::State;
use app::App;
use console::Term;
use screen::Screen;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long keys are waited for before the clock is looked at.
const TICK: Duration = Duration::from_millis(50);
/// Columns of `--once` where there is no terminal.
const COLUMNS: u16 = 120;

/// `towpath top`.
pub(crate) fn top(args: &Top) -> Result<ExitCode, Box<dyn Error>> {
    let first = ask_state(&args.control)?;
    let mut app = App::new(args.view, args.interval, has_colour());
    app.update(first);
    if args.once {
        std::thread::sleep(args.interval);
        app.update(ask_state(&args.control)?);
        let columns = Term::stdout().size_checked().map_or(COLUMNS, |(_, columns)| columns);
        for line in picture::whole(&app, columns) {
            outln!("{line}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err("top needs a terminal; --once prints one picture, 'towpath state' everything".into());
    }
    watch(app, args.control.clone())
}

/// Colours are off with `NO_COLOR` (see no-color.org), and on a terminal without them.
fn has_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var("TERM").is_ok_and(|term| term != "dumb")
}

/// The result of a request: the document, or why there is none.
type Answer = Result<Box<State>, String>;

/// A thread that asks for the document on request.
fn fetcher(control: PathBuf) -> std::io::Result<(Sender<()>, Receiver<Answer>)> {
    let (ask, requests) = channel();
    let (answer, answers) = channel();
    std::thread::Builder::new().name("towpath-top".into()).spawn(move || {
        while requests.recv().is_ok() {
            let state = ask_state(&control).map(Box::new).map_err(|error| error.to_string());
            if answer.send(state).is_err() {
                break;
            }
        }
    })?;
    Ok((ask, answers))
}

fn watch(mut app: App, control: PathBuf) -> Result<ExitCode, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let (ask, answers) = fetcher(control)?;
    let mut screen = Screen::new()?;
    let (mut next, mut is_pending) = (Instant::now() + app.interval.min(Duration::from_millis(200)), false);
    while !stop.load(Ordering::Relaxed) && !app.quits {
        if screen.draw(&mut app).is_err() {
            break;
        }
        let Some(keys) = screen.keys(TICK) else { break };
        keys.into_iter().for_each(|key| app.press(key));
        match answers.try_recv() {
            Ok(answer) => {
                is_pending = false;
                next = Instant::now() + app.interval;
                match answer {
                    Ok(state) if !app.paused => app.update(*state),
                    Ok(_) => {}
                    Err(error) => app.lost(error),
                }
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => app.lost("the thread that asks has ended".into()),
        }
        let due = next.min(Instant::now() + app.interval);
        if !is_pending && Instant::now() >= due {
            is_pending = ask.send(()).is_ok();
        }
    }
    // The screen is restored first.
    drop(screen);
    Ok(ExitCode::SUCCESS)
}
