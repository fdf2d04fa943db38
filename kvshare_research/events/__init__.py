"""What our workers tell the outside of their pools: KV events over ZMQ in the engines' own format (`conf/events`)."""
