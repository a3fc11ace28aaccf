"""What people see, in a real browser and a real terminal: ``make test-screens``, which installs chromium and
tmux by apt-get."""
