# Example consumer and library export: filled in beside tests/consumer.
