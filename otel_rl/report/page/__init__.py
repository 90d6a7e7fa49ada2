"""The page: a report as one HTML file that opens without a network.

Sections are shown as a terminal shows them. Beside them stand figures. A figure is a value (``figure``), made by a pure
function from rows of the report and of its course, so that a test reads its numbers without a browser. Only ``draw``
knows Bokeh, only ``document`` and ``blocks`` know HTML, and ``page.js`` links what a browser shows.
"""
