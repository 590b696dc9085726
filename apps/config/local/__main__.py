"""`python -m apps.config.local`: run Paceline until Ctrl-C."""

import signal

if __name__ == "__main__":
    # Until there is something to stop in order, Ctrl-C simply ends: loading what follows takes a moment.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back by the set-up while it became this program
    from apps.config.local.running import main

    raise SystemExit(main())
