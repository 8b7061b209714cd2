"""Audio as bytes: what a file's header says, and its samples in mono at the model's rate.

formats     which files are audio, by their first bytes
wav         a WAV file's header, and its samples
resampling  samples at another rate
kind        audio as a kind of media: how it is checked, measured and named
"""
