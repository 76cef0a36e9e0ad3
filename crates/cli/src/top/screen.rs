//! The terminal: raw mode and the alternate screen, restored whatever happens.
//!
//! The terminal is restored when the [`Screen`] is dropped: at the end, after an error, after a
//! signal (which sets a flag), and when a panic unwinds. A panic's message is printed after that,
//! by the hook.

use super::app::App;
use super::keys::{Key, keys};
use super::picture;
use console::Term;
use nix::errno::Errno;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::read;
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;
use towpath_sys::poll::wait_readable;

/// The settings of the terminal before; none while it is not in use.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Puts the terminal back, once. A terminal that is gone is no error.
fn restore() {
    let before = BEFORE.lock().ok().and_then(|mut before| before.take());
    if let Some(before) = before {
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
    }
}

/// The terminal, while it shows pictures.
pub(super) struct Screen {
    terminal: Terminal<Ansi>,
}

impl Screen {
    pub(super) fn new() -> io::Result<Screen> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        let old = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            old(panic);
        }));
        if let Ok(mut kept) = BEFORE.lock() {
            *kept = Some(before);
        }
        let entered = tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(io::Error::from).and_then(|()| {
            io::stdout().write_all(ENTER.as_bytes())?;
            Ok(Screen { terminal: Terminal::new(Ansi::default())? })
        });
        entered.inspect_err(|_| restore())
    }

    /// Draws what has changed.
    pub(super) fn draw(&mut self, app: &mut App) -> io::Result<()> {
        self.terminal.draw(|frame| picture::draw(app, frame.area(), frame.buffer_mut())).map(drop)
    }

    /// The keys that were pressed, waiting at most for `time`; `None` if the terminal is gone.
    pub(super) fn keys(&mut self, time: Duration) -> Option<Vec<Key>> {
        // Not through the buffer of `stdin`, which `poll` does not see.
        let input = io::stdin();
        let is_ready = match wait_readable(input.as_fd(), Some(time)) {
            Ok(is_ready) => is_ready,
            Err(_) => return None,
        };
        if !is_ready {
            return Some(Vec::new());
        }
        let mut bytes = [0; 64];
        // A terminal that is gone is at its end, or has an error.
        match read(&input, &mut bytes) {
            Ok(0) => None,
            Ok(n) => Some(keys(bytes.get(..n).unwrap_or_default())),
            Err(error) => (error == Errno::EINTR).then(Vec::new),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal by escape sequences that all of them know (ECMA-48).
#[derive(Default)]
struct Ansi {
    text: String,
}

/// The number of a colour that the pictures use.
fn colour(colour: Color) -> u8 {
    match colour {
        Color::Red => 31,
        Color::Green => 32,
        Color::Cyan => 36,
        _ => 39,
    }
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        let mut last = None;
        for (x, y, cell) in content {
            let style = (cell.fg, cell.modifier);
            // Writing to a text does not fail.
            let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
            if last != Some(style) {
                let _ = write!(self.text, "\x1b[0;{}", colour(cell.fg));
                let codes = [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")];
                codes.iter().filter(|(one, _)| cell.modifier.contains(*one)).for_each(|(_, code)| self.text += code);
                self.text.push('m');
                last = Some(style);
            }
            self.text += cell.symbol();
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.text += "\x1b[?25l";
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.text += "\x1b[?25h";
        Ok(())
    }

    /// Pictures have no cursor.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, what: ClearType) -> io::Result<()> {
        self.text += match what {
            ClearType::All => "\x1b[0m\x1b[2J",
            ClearType::AfterCursor => "\x1b[0J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[0K",
        };
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the terminal is gone");
        let (height, width) = Term::stdout().size_checked().ok_or_else(gone)?;
        Ok(Size { width, height })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text.as_bytes())?;
        self.text.clear();
        out.flush()
    }
}
