"""Publishes messages to Redis, Kafka, RabbitMQ and NATS."""
