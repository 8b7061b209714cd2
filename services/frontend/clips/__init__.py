"""Clips as bytes: what their container says, and their frames decoded to RGB.

limits    what one clip may take, which files are clips, and what an MP4 file claims
readers   `ClipReaders`: processes in which FFmpeg reads clips, bounded in memory and time
reader    `ClipReader`: the caller's side of one such process
child     such a process
reading   a clip read with FFmpeg (PyAV)
messages  what such a process is asked, and what it answers
sampling  which frames of a clip are taken
"""
