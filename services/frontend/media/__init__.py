"""Media of requests: fetched, checked before they are decoded, measured and named by content.

items            `ItemLoader`: the media of one request, all of the below together
kinds            how one item of each kind is checked, measured and named
fetching         a media URL to bytes, within limits: data: in slices, file://; `web`: http(s)
lookups          host names to addresses, and which of these may be fetched from
store            bytes of requests under way, bounded in memory; media a client may name by uuid
picture_formats  a picture's size without decoding it: PNG, JPEG, GIF, BMP, TIFF; `webp`: of WebP
picture_header   what the header of any picture says; EXIF and XMP
image            the canonical decoding to RGB, for encoders
pixel_bounds     how large pictures and frames may become, by `mm_processor_kwargs`, and do
"""
