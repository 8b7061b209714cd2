"""Clips as bytes: what their container says, and their frames decoded to RGB.

limits    what one clip may take, and which files are clips
readers   `ClipReaders`: processes in which FFmpeg reads clips, bounded in memory and time
child     such a process
reading   a clip read with FFmpeg (PyAV)
boxes     what an MP4 file claims, before FFmpeg believes it
sampling  which frames of a clip are taken
"""
