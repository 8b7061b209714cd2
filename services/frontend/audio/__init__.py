"""Audio as bytes: what a file's header says, and its samples in mono at the model's rate.

formats     which files are audio, by their first bytes
wav         a WAV file's header, and its samples
compressed  samples of other formats, read with FFmpeg (PyAV) in a process of its own
reading     a file of any of these formats to samples at the model's rate, resampled
kind        audio as a kind of media: how it is checked, measured and named
"""
