"""The client compared with paho-mqtt and aiomqtt."""
