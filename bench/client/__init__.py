"""The client beside paho-mqtt and aiomqtt."""
