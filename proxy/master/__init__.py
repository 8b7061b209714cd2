"""Placement by a master: asked for every request, followed for who is there, told how it went.

link       the masters, which of them is asked, and what is known without any of them
following  the fleet kept as the master sees it
placing    where a request's stages run, as the master says
reports    stages that are over, told in batches
"""
