"""The rendezvous handler: joins, enters and leaves rounds. Runs in torchrun's main thread."""
