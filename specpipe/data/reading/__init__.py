"""Reading a dataset: input files, row ranges, and checks of their columns. Begin with `input_files`, then
`dataset_rows`. Imports columns, locations and the formats' libraries.
"""
