"""Workers asked over HTTP whether they are alive, where nothing else says so."""
