//! The terminal of `postdate top`: keys, signals, and the loop that draws.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};

use super::state::{Snapshot, TopState, UserKey};
use super::{draw, poll};
use crate::cli::client::ApiClient;
use crate::cli::output;
use crate::domain::Clock;

/// Longest time without a look at keys, answers and signals.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// Exit code of a command that a signal ended, without the number of the signal.
const SIGNAL_EXIT: u8 = 128;

/// Channels to the thread that reads the API.
struct Reader {
    opened: SyncSender<Option<String>>,
    outcomes: Receiver<Result<Snapshot, String>>,
}

/// Shows the state until the user or a signal ends it. The terminal is as before then, after a panic too.
pub(super) fn run(client: ApiClient) -> ExitCode {
    let mut state = TopState::new(client.url());
    let signals = match watch_signals() {
        Ok(signals) => signals,
        Err(error) => return failed(&error),
    };
    let (opened, opened_routes) = sync_channel(1);
    let (outcome_sender, outcomes) = sync_channel(1);
    std::thread::spawn(move || poll::run(&client, &opened_routes, &outcome_sender));
    // Installs a hook that restores the terminal at a panic.
    let mut terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(error) => return failed(&error),
    };
    let shown = show(
        &mut terminal,
        &mut state,
        &Reader { opened, outcomes },
        &signals,
    );
    ratatui::restore();
    match (shown, signals.load(Ordering::Relaxed)) {
        (Err(error), _) => failed(&error),
        (Ok(()), 0) => ExitCode::SUCCESS,
        (Ok(()), number) => ExitCode::from(SIGNAL_EXIT + number),
    }
}

fn failed(error: &std::io::Error) -> ExitCode {
    output::error(format!("the terminal cannot be used: {error}"));
    ExitCode::FAILURE
}

fn show(
    terminal: &mut DefaultTerminal,
    state: &mut TopState,
    reader: &Reader,
    signals: &AtomicU8,
) -> std::io::Result<()> {
    let mut asked = None;
    while signals.load(Ordering::Relaxed) == 0 {
        terminal.draw(|frame| draw::draw(frame, state, Clock::start().wall().0))?;
        if event::poll(TICK_INTERVAL)?
            && let Some(key) = user_key(&event::read()?)
            && !state.press(key)
        {
            break;
        }
        match reader.outcomes.try_recv() {
            Ok(outcome) => state.take(outcome),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(std::io::Error::other("the reader of the API ended"));
            }
        }
        // If the reader is busy with the choice before, the next round tells it.
        if state.opened != asked && reader.opened.try_send(state.opened.clone()).is_ok() {
            asked.clone_from(&state.opened);
        }
    }
    Ok(())
}

/// The meaning of an event; `None` if it has none, as a change of the terminal's size: the next drawing follows it.
fn user_key(event: &Event) -> Option<UserKey> {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press,
        ..
    }) = event
    else {
        return None;
    };
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(UserKey::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(UserKey::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(UserKey::Down),
        KeyCode::Enter | KeyCode::Right => Some(UserKey::Open),
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => Some(UserKey::Back),
        KeyCode::Char('q') => Some(UserKey::Quit),
        _ => None,
    }
}

/// Watches for the signals that end a command. Answers the place of their number; 0 until one comes.
fn watch_signals() -> std::io::Result<Arc<AtomicU8>> {
    let arrived = Arc::new(AtomicU8::new(0));
    let seen = arrived.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let guard = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            let kind = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            };
            seen.store(kind.as_raw_value() as u8, Ordering::Relaxed);
        });
    });
    Ok(arrived)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_meaning_when_pressed() {
        let press = |code, modifiers| user_key(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(
            press(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(UserKey::Quit)
        );
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(
            press(KeyCode::Enter, KeyModifiers::NONE),
            Some(UserKey::Open)
        );
        let release =
            KeyEvent::new_with_kind(KeyCode::Enter, KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(user_key(&Event::Key(release)), None);
        assert_eq!(user_key(&Event::Resize(80, 24)), None);
    }
}
