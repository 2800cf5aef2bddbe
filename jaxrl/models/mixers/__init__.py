"""What mixes tokens in a layer other than attention, and the states that it keeps."""
