"""The parts of the chat screen: one class for each module of commands, over what they share."""
